"""Committed offsets of the groups of one partition: which count, which a transaction holds, which have
expired.

Owns the table of offsets, by group. Does not decide whether a member may commit: `commits` does. Source:
KIP-211, KIP-447, KIP-496.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from metaquorum.broker.coordinator.groups.consumer.group import ConsumerGroup
from metaquorum.broker.coordinator.groups.group import CONSUMER, Group, Phase
from metaquorum.broker.coordinator.groups.records import CommittedOffset, offset_of
from metaquorum.broker.coordinator.groups.requests import FetchedOffset, FetchOffsets, TopicPartition
from metaquorum.broker.coordinator.state import BatchOrigin
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.messages import OffsetCommitKey, OffsetCommitValue

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


class OffsetTable:
    """See the module. Changed only by `replay` and `marker`."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[tuple[str, TopicPartition], CommittedOffset]] = {}
        self._topics: Counter[str] = Counter()

    # ---- records ---------------------------------------------------------------------------------

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None, origin: BatchOrigin) -> None:
        at = key.topic, key.partition
        if value is None:
            self._remove(key.group, at)
            return
        committed = offset_of(value, origin.offset)
        if origin.producer_id >= 0:
            self._pending.setdefault(origin.producer_id, {})[key.group, at] = committed
        else:
            self._put(key.group, at, committed)

    def marker(self, producer_id: int, *, committed: bool) -> tuple[str, ...]:
        """A transaction ended: its offsets count, unless there was a later commit, or are dropped. Returns
        the groups that it had offsets of."""
        pending = self._pending.pop(producer_id, {})
        for (group_id, at), offset in pending.items():
            known = self.of(group_id).get(at)
            if committed and (known is None or known.log_offset < offset.log_offset):
                self._put(group_id, at, offset)
        return tuple(dict.fromkeys(group_id for group_id, _ in pending))

    def _put(self, group_id: str, at: TopicPartition, committed: CommittedOffset) -> None:
        offsets = self._committed.setdefault(group_id, {})
        if at not in offsets:
            self._topics[at[0]] += 1
        offsets[at] = committed

    def _remove(self, group_id: str, at: TopicPartition) -> None:
        offsets = self._committed.get(group_id, {})
        if offsets.pop(at, None) is not None:
            self._topics[at[0]] -= 1
            if not self._topics[at[0]]:
                del self._topics[at[0]]
        if not offsets:
            self._committed.pop(group_id, None)

    # ---- contents --------------------------------------------------------------------------------

    @property
    def groups(self) -> Iterable[str]:
        return self._committed.keys()

    @property
    def topics(self) -> Iterable[str]:
        """Topics that have a committed offset."""
        return self._topics.keys()

    def of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._committed.get(group_id, _NOTHING)

    def is_held(self, group_id: str) -> bool:
        """Whether an open transaction has offsets of the group."""
        return next(self._pending_of(group_id), None) is not None

    def _pending_of(self, group_id: str) -> Iterator[TopicPartition]:
        return (at for held in self._pending.values() for known, at in held if known == group_id)

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


def _fetched(at: TopicPartition, committed: CommittedOffset | None, *, is_held: bool) -> FetchedOffset:
    topic, partition = at
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
