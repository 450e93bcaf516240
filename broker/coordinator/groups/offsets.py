"""Committed offsets of the groups of one partition: which count, which a transaction holds, which have
expired.

Source: KIP-211, KIP-447, KIP-496.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from metaquorum.broker.coordinator.groups.consumer.group import ConsumerGroup
from metaquorum.broker.coordinator.groups.group import (
    CONSUMER,
    CommittedOffset,
    FetchedOffset,
    FetchOffsets,
    Group,
    Phase,
    TopicPartition,
    Work,
    offset_of,
    offset_record,
    offset_tombstone,
)
from metaquorum.broker.coordinator.groups.rebalance import Rebalances
from metaquorum.broker.coordinator.state import BatchOrigin
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.wire.messages import (
    OffsetCommitKey,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitValue,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    TxnOffsetCommitRequest,
)

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


class OffsetTable:
    """See the module. Changed only by `replay` and `marker`."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        # By producer. `_holders`: the producers that hold, or held, offsets of a group.
        self._pending: dict[int, dict[tuple[str, TopicPartition], CommittedOffset]] = {}
        self._holders: dict[str, set[int]] = {}
        self._topics: Counter[str] = Counter()

    # ---- records ---------------------------------------------------------------------------------

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None, origin: BatchOrigin) -> None:
        partition = key.topic, key.partition
        if value is None:
            self._remove(key.group, partition)
            return
        committed = offset_of(value, origin.offset)
        if origin.producer_id >= 0:
            self._hold(origin.producer_id, key.group, partition, committed)
        else:
            self._put(key.group, partition, committed)

    def marker(self, producer_id: int, *, committed: bool) -> tuple[str, ...]:
        """A transaction ended: its offsets count, unless there was a later commit, or are dropped. Returns
        the groups that it had offsets of."""
        pending = self._pending.pop(producer_id, {})
        for (group_id, partition), offset in pending.items():
            known = self.of(group_id).get(partition)
            if committed and (known is None or known.log_offset < offset.log_offset):
                self._put(group_id, partition, offset)
            self._uncount(partition)
            self._let_go(producer_id, group_id)
        return tuple(dict.fromkeys(group_id for group_id, _ in pending))

    def _put(self, group_id: str, partition: TopicPartition, committed: CommittedOffset) -> None:
        offsets = self._committed.setdefault(group_id, {})
        if partition not in offsets:
            self._topics[partition[0]] += 1
        offsets[partition] = committed

    def _hold(
        self, producer_id: int, group_id: str, partition: TopicPartition, pending: CommittedOffset
    ) -> None:
        held = self._pending.setdefault(producer_id, {})
        if (group_id, partition) not in held:
            self._topics[partition[0]] += 1
        held[group_id, partition] = pending
        self._holders.setdefault(group_id, set()).add(producer_id)

    def _remove(self, group_id: str, partition: TopicPartition) -> None:
        """A tombstone: what open transactions hold goes too, or it would be committed later."""
        offsets = self._committed.get(group_id, {})
        if offsets.pop(partition, None) is not None:
            self._uncount(partition)
        if not offsets:
            self._committed.pop(group_id, None)
        for producer_id in tuple(self._holders.get(group_id, ())):
            held = self._pending[producer_id]
            if held.pop((group_id, partition), None) is not None:
                self._uncount(partition)
            if not any(known == group_id for known, _ in held):
                self._let_go(producer_id, group_id)
            if not held:
                del self._pending[producer_id]

    def _let_go(self, producer_id: int, group_id: str) -> None:
        holders = self._holders.get(group_id, set())
        holders.discard(producer_id)
        if not holders:
            self._holders.pop(group_id, None)

    def _uncount(self, partition: TopicPartition) -> None:
        self._topics[partition[0]] -= 1
        if not self._topics[partition[0]]:
            del self._topics[partition[0]]

    # ---- contents --------------------------------------------------------------------------------

    @property
    def groups(self) -> Iterable[str]:
        """Groups that have a committed offset, or one that an open transaction holds."""
        return self._committed.keys() | self._holders.keys()

    @property
    def topics(self) -> Iterable[str]:
        """Topics that have a committed offset, or one that an open transaction holds."""
        return self._topics.keys()

    def of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._committed.get(group_id, _NOTHING)

    def known_of(self, group_id: str) -> tuple[TopicPartition, ...]:
        """What a deletion of the group's offsets must delete: those committed, and those held."""
        return tuple(dict.fromkeys((*self.of(group_id), *self._pending_of(group_id))))

    def is_held(self, group_id: str) -> bool:
        """Whether an open transaction has offsets of the group."""
        return group_id in self._holders

    def _pending_of(self, group_id: str) -> Iterator[TopicPartition]:
        holders = self._holders.get(group_id, ())
        return (at for each in holders for known, at in self._pending[each] if known == group_id)

    def fetch(self, request: FetchOffsets) -> tuple[FetchedOffset, ...]:
        """The committed offsets; -1 where there is none."""
        committed = self.of(request.group_id)
        asked = sorted(committed) if request.partitions is None else request.partitions
        held = frozenset(self._pending_of(request.group_id)) if request.require_stable else frozenset()
        return tuple(_fetched(at, committed.get(at), is_held=at in held) for at in asked)

    # ---- age -------------------------------------------------------------------------------------

    def expired(self, group: Group | ConsumerGroup, wall_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Offsets that have been kept long enough (KIP-211): of a group without members since it became
        empty, else since their commit. Topics that the members of a stable group consume keep theirs, and so
        does a group that is between generations."""
        subscribed: frozenset[str] | None = frozenset()
        since_ms = -1
        if isinstance(group, ConsumerGroup):
            subscribed = group.subscribed()
        elif group.protocol_type is not None:
            if group.phase is Phase.EMPTY:
                since_ms = group.state_since_ms
            elif group.phase is Phase.STABLE and group.protocol_type == CONSUMER:
                subscribed = group.subscribed()
            else:
                subscribed = None
        if subscribed is None:
            return []
        held = frozenset(self._pending_of(group.group_id))
        return [
            at
            for at, offset in self.of(group.group_id).items()
            if at[0] not in subscribed and at not in held and _is_old(offset, since_ms, wall_ms, retention_ms)
        ]


def _is_old(offset: CommittedOffset, since_ms: int, wall_ms: int, retention_ms: int) -> bool:
    if offset.expire_ms >= 0:
        return wall_ms >= offset.expire_ms
    return wall_ms - (offset.commit_ms if since_ms < 0 else since_ms) >= retention_ms


def _fetched(named: TopicPartition, committed: CommittedOffset | None, *, is_held: bool) -> FetchedOffset:
    topic, partition = named
    if is_held:
        return FetchedOffset(topic=topic, partition=partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if committed is None:
        return FetchedOffset(topic=topic, partition=partition)
    return FetchedOffset(
        topic=topic,
        partition=partition,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


# OffsetCommit, TxnOffsetCommit and OffsetDelete: who may commit, what is stored, the answer for each
# partition.


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
        self, work: Work, request: OffsetCommitRequest, named: tuple[str, Any], error: ErrorCode | None
    ) -> ErrorCode:
        topic, part = named
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
        if utf16_length(metadata) > self._config.offset_metadata_max_bytes:
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
        committed = frozenset(self._offsets.known_of(group.group_id))

        def delete(topic: str, index: int) -> ErrorCode:
            if subscribed is None or topic in subscribed:
                return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if (topic, index) in committed:
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


def utf16_length(text: str) -> int:
    """As Java counts characters, and so Kafka `offset.metadata.max.bytes`."""
    return len(text) + sum(char > "\uffff" for char in text)


def _epoch_error(group: ConsumerGroup, member_id: str, epoch: int) -> ErrorCode | None:
    """Members of the new protocol commit in their epoch, classic members among them in their generation."""
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.epoch == epoch:
        return None
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
